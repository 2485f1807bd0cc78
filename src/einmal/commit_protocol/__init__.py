"""The commit protocol of a micro-batch: one Kafka transaction per batch, with a commit record inside it.

Pure: knows no Spark, no socket and no clock. ``commit_record`` is the proof that a batch is in, ``batch_plan`` compares
it with the checkpoint, ``claims`` gives every partition one writer, ``committer`` puts the steps in
order.
"""
