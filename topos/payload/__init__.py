"""Payloads: shapes, layouts, elements, tensors."""
