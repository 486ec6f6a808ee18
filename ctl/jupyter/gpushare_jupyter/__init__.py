"""IPython extension for notebooks that share a GPU through gpushare."""

from .extension import load_ipython_extension, unload_ipython_extension

__version__ = "0.1.0"
__all__ = ["load_ipython_extension", "unload_ipython_extension"]
