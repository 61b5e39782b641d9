"""Fine-tune Gemma 4 on whatever hardware this process woke up on. Started by ../entrypoint.py."""

__version__ = "0.1.0"
