"""A chief that fails, and an evaluator, workers and ps that would wait for it for ever."""

import sys

import tensorflow as tf

cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster.task_type in ("worker", "ps"):
    tf.distribute.Server(cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id).join()
elif cluster.task_type == "evaluator":
    tf.train.checkpoints_iterator("/data/output/none").__next__()
else:
    sys.exit("the data is not what it should be")
