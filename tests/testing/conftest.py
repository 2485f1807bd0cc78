"""The project of a user is run by ``test_pytest_plugin.py`` in a process of its own."""

collect_ignore = ["user_project"]
