"""Makes torch's threads sleep while they wait for each other. Import it before torch.

GNU OpenMP's threads spin by default. A spinning thread holds a core that the store's Lookahead
thread or another process needs, so training steps become much slower. Sleeping costs some
microseconds in each parallel region. All variants use this setting, unless the environment has
`OMP_WAIT_POLICY`.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
