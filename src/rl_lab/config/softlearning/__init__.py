"""Configs in Softlearning's words (https://github.com/rail-berkeley/softlearning), put into the lab's."""
