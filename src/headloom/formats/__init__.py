"""What lies on disk: run folders, histories, trace folders. Both wings read them."""
