"""Connections, and requests to brokers, leaders and coordinators, with retries."""
