"""The weights that a run starts from. The network is made on the meta device and laid over the processes there; then
each process fills its own rows, one tensor at a time, so that no process ever holds the whole."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from redraft.errors import ConfigError
from redraft.model.config import ModelConfig
from redraft.model.folder import checkpoint_folder
from redraft.model.network import LLaDA2
from redraft.model.reader import CheckpointReader, Rows
from redraft.text.tokenizer import Tokenizer
from redraft.training.initial import generator, initial_weight
from redraft.training.lora import add_lora, is_adapted, plain_name
from redraft.training.parallel import Distributed, Ranks
from redraft.training.pieces import Piece, copied_piece
from redraft.training.precision import compute_dtype
from redraft.training.recipe import BaseRecipe

ORIGINAL, TRAINED = ".original_module.", ".modules_to_save.default."
"""How PEFT names a module that is trained whole: as it was, and its copy."""


class Start:
    """Where the weights of a run come from: the checkpoint `start`, or random numbers by the recipe's seed.

    Raises CheckpointError, ConfigError if the checkpoint isn't whole, or isn't of the recipe's model.
    """

    def __init__(self, recipe: BaseRecipe, tokenizer: Tokenizer):
        self.recipe = recipe
        self.reader = CheckpointReader(checkpoint_folder(recipe.start)) if recipe.start else None
        if self.reader is None:
            self.config = ModelConfig(
                **recipe.model,
                vocab_size=-(-tokenizer.vocab_size // 8) * 8,
                mask_token_id=tokenizer.mask_id,
                eos_token_id=tokenizer.eos_ids[0],
                pad_token_id=tokenizer.eos_ids[0],
            )
        else:
            self.config = self.reader.config
            for name, value in recipe.model.items():
                if (own := getattr(self.config, name)) != value:
                    raise ConfigError(f"model.{name} is {value!r}, but {recipe.start} has {own!r}")
        self._plain = LLaDA2(self.config, device="meta", dtype=torch.float32).state_dict()

    def network(self, *, adapted: bool = True) -> LLaDA2:
        """The network of the run on the meta device, in float32; with adapters if the recipe and the caller ask."""
        model = LLaDA2(self.config, device="meta", dtype=torch.float32)
        if self.reader is not None:
            dtypes = {name: tensor.dtype for name, tensor in self._plain.items()}
            model.file_dtypes = self.reader.widened(dtypes, keep_all=False)
        return add_lora(model, self.recipe.lora, seed=self.recipe.seed) if self.recipe.lora and adapted else model

    @torch.no_grad()
    def fill(self, distributed: Distributed, *, trained: bool = True) -> None:
        """Fills this process's rows of every tensor, the same whatever the layout. trained: also what a checkpoint of
        the run holds, which is everything without adapters."""
        distributed.settle()
        frozen = {name: piece for name, piece in distributed.parts.items() if name not in distributed.pieces}
        self._fill_plain({plain_name(name): piece for name, piece in frozen.items()})
        if not trained:
            return
        if not is_adapted(distributed.model):
            self._fill_plain(distributed.pieces)
            return
        for name, piece in distributed.pieces.items():
            if TRAINED in name:
                piece.tensor.copy_(frozen[name.replace(TRAINED, ORIGINAL)].tensor)
            elif ".lora_B." in name:
                piece.tensor.zero_()  # so that the adapted network computes what the plain one does
            else:
                whole = torch.empty(piece.shape, dtype=piece.tensor.dtype)
                nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator(self.recipe.seed, name))
                _copy(whole, piece)

    @torch.no_grad()
    def read(self, name: str) -> Tensor:
        """One tensor of the plain network, whole."""
        whole = torch.empty_like(self._plain[name], device="cpu")
        self._fill_plain({name: copied_piece(whole, 1, first=True)})
        return whole

    def reference(self, ranks: Ranks) -> LLaDA2:
        """The network as it was at the start, frozen, in evaluation mode, and laid over the processes as the trained
        one is."""
        parallel = replace(self.recipe.parallel, recompute=False)
        model = self.network(adapted=False).requires_grad_(False)
        laid = Distributed(model, parallel, ranks, compute_dtype(self.recipe.run.precision, ranks.device.type))
        self.fill(laid)
        return model.eval()

    def _fill_plain(self, pieces: dict[str, Piece]) -> None:
        """Fills pieces of tensors of the plain network."""
        if self.reader is not None:
            self.reader.fill({name: Rows(piece.tensor, piece.first) for name, piece in pieces.items()})
            return
        for name, piece in pieces.items():
            if piece.count:
                _copy(initial_weight(self.config, name, piece.shape, seed=self.recipe.seed), piece)


def _copy(whole: Tensor, piece: Piece) -> None:
    """This process's rows of a tensor."""
    piece.tensor.copy_(whole[piece.first : piece.first + piece.count])
