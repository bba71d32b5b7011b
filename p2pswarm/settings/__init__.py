"""Settings: dataclasses with defaults and limits, and the parser of their files.

Entrances: `config.py`, `train_config.py`, `parser.py`.
"""
