"""One command per file: parse the arguments, call the layers below, print the result."""
