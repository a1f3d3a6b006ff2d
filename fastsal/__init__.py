"""fastsal: fast, exact sentence embeddings for BERT- and ALBERT-family models."""
