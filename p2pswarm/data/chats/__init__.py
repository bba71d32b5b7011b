"""Chats, and prompts with completions: what rows say, how templates write it, what is a target.

Entrance: `chat_corpus.load_chats`.
"""
