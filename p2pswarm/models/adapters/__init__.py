"""Low-rank adapters beside frozen weights, with the names, the arithmetic and the files of PEFT.

Entrance: `adapter_targets.settled`, `lora_modules.add_to_linear`; `models/scope.py` puts them in.
"""
