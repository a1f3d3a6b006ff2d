"""SentenceEncoder, SBERT, SALBERT: SentenceTransformers on the drop-in modules and the engine's loop.

May import sentence-transformers and the layers below: modules, backends, engine.
"""
