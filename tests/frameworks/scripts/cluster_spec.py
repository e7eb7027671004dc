"""The oldest kind: hosts as flags, `tf.train.Server`, a monitored session, a ps that joins for ever."""

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "")
flags.DEFINE_string("worker_hosts", "", "")
flags.DEFINE_string("job_name", "", "")
flags.DEFINE_integer("task_index", 0, "")
FLAGS = flags.FLAGS


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    device = tf.train.replica_device_setter(worker_device=f"/job:worker/task:{FLAGS.task_index}", cluster=cluster)
    with tf.device(device):
        x = tf.random_normal([16, 4])
        y = tf.reduce_sum(x, axis=1, keepdims=True)
        w = tf.get_variable("w", [4, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        steps = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=steps)
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=FLAGS.task_index == 0,
        checkpoint_dir="/data/output/model",
        hooks=[tf.train.StopAtStepHook(last_step=200)],
    ) as session:
        value = None
        while not session.should_stop():
            value, _ = session.run([loss, train])
    print(f"worker {FLAGS.task_index} of {cluster.num_tasks('worker')} ends with loss {value}", flush=True)


tf.app.run(main)
