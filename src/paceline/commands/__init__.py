"""One verb per file, composing what the layers below can do."""
