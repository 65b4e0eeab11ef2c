"""The tests: packages mirror the folders of the product."""
