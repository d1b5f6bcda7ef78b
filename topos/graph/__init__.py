"""The spec: columns, the tape that records them, symbols, tables aligned to them."""
