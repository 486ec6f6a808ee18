"""The CUPTI witness: `witness.c`, how it is built, and the list of gated calls that it is given."""
