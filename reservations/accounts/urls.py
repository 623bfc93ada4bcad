"""Addresses of the operator's pages about people, and of the group head's page."""

from django.urls import path

from reservations.accounts import course_views, head_views, invitation_views, join_views
from reservations.accounts.identities import views as identities
from reservations.accounts.passwords import views as passwords
from reservations.accounts.second_factors import views as second_factors
from reservations.accounts.sign_up import views as sign_up
from reservations.accounts.tree import change_views, draft_views, import_views
from reservations.accounts.tree import views as account_tree

urlpatterns = [
    path("manage/accounts/", account_tree.show, name="manage-accounts"),
    path("manage/accounts/collect/", account_tree.collect, name="manage-collect"),
    path("manage/accounts/add/", account_tree.add, name="manage-add"),
    path("manage/accounts/draft/", draft_views.show, name="manage-draft"),
    path("manage/accounts/draft/drop/", draft_views.drop, name="manage-drop"),
    path("manage/accounts/changes/", change_views.show, name="manage-changes"),
    path(
        "manage/accounts/changes/<int:pk>/",
        change_views.change_page,
        name="manage-change",
    ),
    path(
        "manage/accounts/changes/<int:pk>/undo/", change_views.undo, name="manage-undo"
    ),
    path("manage/accounts/import/", import_views.show, name="manage-import"),
    path("manage/accounts.csv", import_views.export, name="manage-export"),
    path("manage/logins/", identities.show, name="manage-logins"),
    path("manage/sign-up/", sign_up.show, name="manage-sign-up"),
    path("manage/courses/", course_views.show, name="manage-courses"),
    path("manage/courses/new/", course_views.new, name="manage-course-new"),
    path("manage/courses/<int:pk>/invite/", course_views.invite, name="manage-invite"),
    path("welcome/", invitation_views.choose, name="choose-password"),
    path("welcome/<str:token>/", invitation_views.welcome, name="welcome"),
    path(
        "login/password/forgotten/",
        passwords.ForgottenPassword.as_view(),
        name="password-reset",
    ),
    path("login/password/sent/", passwords.link_sent, name="password-reset-sent"),
    path(
        "login/password/<str:uidb64>/<str:token>/",
        passwords.PasswordByLink.as_view(),
        name="password-reset-choose",
    ),
    path("sign-up/", sign_up.ask, name="sign-up"),
    path("sign-up/sent/", sign_up.sent, name="sign-up-sent"),
    path("sign-up/choose/", sign_up.choose, name="sign-up-choose"),
    path("sign-up/link/<str:token>/", sign_up.follow, name="sign-up-link"),
    path("second-factor/", second_factors.prove, name="second-factor"),
    path("me/second-factor/", second_factors.show, name="second-factors"),
    path("me/password/", passwords.OwnPassword.as_view(), name="password-change"),
    path("group/", head_views.show, name="group"),
    path("join/<str:token>/", join_views.join, name="join-group"),
]
