"""Whether there is a GPU to run on."""


def missing() -> str | None:
    """Why nothing can run on a GPU here; None if it can."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if torch.version.cuda is None:
        return "needs a GPU, and this PyTorch is built without CUDA: scripts/setup.sh --gpu"
    if not torch.cuda.is_available():
        return "needs a CUDA device, and PyTorch sees none"
    return None
