"""Horovod's API without Horovod.

``import trainmaster_train.horovod.torch as hvd`` replaces ``import horovod.torch as hvd``. ``horovod.torch`` is built
on torch.distributed; ``horovod.tensorflow`` and ``horovod.keras`` need only numpy. docs/howto/horovod.md lists
what is the same and what differs.
"""
