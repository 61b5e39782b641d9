"""Fine-tune Gemma 4 on whatever hardware this process woke up on. Started by ../entrypoint.py."""

import logging

__version__ = "0.1.0"

# On CPUs with bfloat16, bitsandbytes asks, while it is imported, for a package that it does without.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
