"""The matrix product at hardware speed: tiles of FMA chains in registers, panels in cache, blocks of both."""
