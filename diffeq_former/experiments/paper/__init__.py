"""The figures and tables of the DiffEqFormer paper (arXiv 2503.01329) at one size."""
