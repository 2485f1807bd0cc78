"""Histories in, anomalies out. Pure; knows no system under test."""
