"""The store: zarr v3 arrays through tensorstore, and what is kept beside them."""
