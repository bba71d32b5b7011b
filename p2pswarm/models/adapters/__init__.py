"""Low-rank adapters beside frozen weights, with the names, the arithmetic and the files of PEFT.

Entrance: `adapter_targets.settled` and `adapter_modules.add_adapters`.
"""
