"""Backends of attention calls: native kernels (CPU), Triton kernels (GPU), plain torch."""
