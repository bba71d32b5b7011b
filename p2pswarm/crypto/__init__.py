"""Identity, Noise XX and AEAD records."""
