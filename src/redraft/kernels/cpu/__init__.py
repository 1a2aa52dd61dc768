"""The CPU kernel: C++ that the system's compiler builds at its first use (`build`) for the processor at hand
(`levels`), called through ctypes (`library`)."""
