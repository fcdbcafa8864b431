"""Makes torch's threads sleep, not spin, while they wait for each other. Import before torch.

GNU OpenMP's threads spin by default. As soon as anything else wants a core, the store's Lookahead
thread for one, the spinning ones hold up the one that has work to do: on two cores a training
step beside one busy process took 1,000 ms instead of 70. Sleeping costs some microseconds a
parallel region. It is set for every variant alike, and a setting of the environment stands.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
