"""Where an attention call runs: native kernels, or plain torch."""
