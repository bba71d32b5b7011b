"""Tensors on the wire: meta, grant or refuse, chunks, codecs."""
