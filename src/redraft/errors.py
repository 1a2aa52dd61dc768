"""Every error that Redraft raises on purpose.

    RedraftError
    ├── InvalidInput          (ValueError)         a field, a prompt or a setting is wrong
    │   ├── ConfigError                            a model configuration or recipe
    │   └── ContextLengthError                     prompt + max_tokens over the context
    ├── CheckpointError       (OSError)            files missing, foreign or mis-shaped
    ├── NumericalError        (ArithmeticError)    NaN or infinite logits or loss
    ├── EngineError           (RuntimeError)       the engine's pages do not balance, or its process is gone
    ├── RemoteError           (RuntimeError)       a server that was asked is not there, refuses or fails
    ├── QueueFull             (RuntimeError)       as many requests wait as may wait
    └── TemplateError         (RuntimeError)       a chat template failed in its sandbox

Each is also the matching built-in, so callers that know nothing of Redraft still catch it. The command
prints the message of a `RedraftError` on one line and exits with 2; a message therefore names the field,
the value it had and what would be right.
"""


class RedraftError(Exception):
    """Root of the tree."""


class InvalidInput(RedraftError, ValueError):
    """A field, a prompt or a setting is wrong: the message names it, its value and what is allowed."""


class ConfigError(InvalidInput):
    """A model configuration or a training recipe is wrong or asks for what does not exist."""


class ContextLengthError(InvalidInput):
    """Prompt and requested tokens do not fit the model's context; the message gives both lengths."""


class CheckpointError(RedraftError, OSError):
    """A checkpoint is missing, incomplete, of a refused format, or does not match its configuration."""


class NumericalError(RedraftError, ArithmeticError):
    """Logits or a loss are not finite."""


class EngineError(RedraftError, RuntimeError):
    """The engine's accounts of its pages do not balance, or a page was used by who doesn't hold it: a bug. Or its
    process has ended."""


class RemoteError(RedraftError, RuntimeError):
    """A server that was asked can't be reached, refused the request, or broke off; the message has its address."""


class QueueFull(RedraftError, RuntimeError):
    """As many requests wait as the engine's queue limit allows; the request may be made again later."""


class TemplateError(RedraftError, RuntimeError):
    """A chat template could not be rendered in its sandbox."""
