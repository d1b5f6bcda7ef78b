"""The tests mirror topos/: the tests of topos/ops/maps.py are tests/ops/test_maps.py."""
