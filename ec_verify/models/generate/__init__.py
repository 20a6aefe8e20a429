# SPDX-License-Identifier: Apache-2.0
"""What is written from the tables: TLA+ modules, diagrams, tables of documents."""
