"""The main job: real text through a broker and a Spark pipeline that are killed on the way.

``run`` is the story, ``processes`` what is killed, ``pipeline`` the Spark driver program, ``verdict`` the comparison.
"""
