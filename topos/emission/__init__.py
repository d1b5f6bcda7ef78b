"""The plan as text for foreign compilers: StableHLO (https://openxla.org/stablehlo/spec)."""
