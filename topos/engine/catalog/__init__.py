"""The catalog: groups of nodes that a plan carries out as one. Each file recognises a family of formulas."""
