"""Exchanges over a link, apart from the calls so that each fits the eye."""
