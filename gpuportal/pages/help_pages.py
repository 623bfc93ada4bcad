"""The help page: tasks and their pages, the glossary and the keyboard shortcuts."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from gpuportal.pages.glossary import TERMS, explanation, prices


@require_safe
def help_page(request: HttpRequest) -> HttpResponse:
    """Show the pages for common tasks, every special word, and the shortcuts."""
    terms = [(term, explanation(term)) for term in TERMS.values()]
    return render(
        request, "gpuportal/pages/help.html", {"terms": terms, "prices": prices()}
    )


@require_safe
def help_terms(request: HttpRequest) -> JsonResponse:
    """Return the glossary by key, and the price of each GPU class, for scripts."""
    terms = {
        key: {
            "word": term.name,
            "text": explanation(term),
            "url": f"{reverse('help')}#{key}",
        }
        for key, term in TERMS.items()
    }
    answer = JsonResponse({"terms": terms, "credits_per_gpu_hour": dict(prices())})
    answer["Cache-Control"] = "private, max-age=300"
    return answer
