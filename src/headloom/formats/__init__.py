"""Files on disk: run folders, histories, trace folders. Training and tracing both read them."""
