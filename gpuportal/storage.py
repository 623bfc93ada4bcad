"""Static files of production: compressed, and named after what is in them."""

from whitenoise.storage import CompressedManifestStaticFilesStorage


class PortalStaticFilesStorage(CompressedManifestStaticFilesStorage):
    """Renames the imports inside our own modules too.

    Otherwise only a page's first module would carry its hash, and a browser could
    run one release's page with another release's modules for as long as it caches.
    Ours only: packages ship modules that import what they do not ship.
    """

    support_js_module_import_aggregation = True
    _js_module_import_aggregation_patterns = (
        "js/*.js",
        CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
    )
