"""The rules of an audit, by subject. Each reads evidence and yields findings."""
