"""The models: a zoo of known architectures, and the user's own."""
