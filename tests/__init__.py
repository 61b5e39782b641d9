"""What holds for every test, in its own process and in those that it starts."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # emulators have no gRPC: gcsfs would wait for it
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # tiny models: threads only wait for each other
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # and where a run has more, they wait asleep: a busy machine stays usable
