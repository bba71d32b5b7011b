"""The library transformers: its models without memory, and the files of weights that it publishes.

Entrance: `hf_library.whole_model`, `weight_files.WeightFiles`.
"""
