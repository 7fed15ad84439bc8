"""One thread for every test: two threads on two busy cores spin, and results then depend on the machine's load."""

import torch

torch.set_num_threads(1)
