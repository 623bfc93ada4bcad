"""The site: settings, addresses, processes, and the pages that join all apps."""
