"""The CUDA backend: kernels of a card (`kernels`), their instructions (`lowering`), and the card itself (`card`)."""
