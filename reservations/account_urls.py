"""Addresses of the operator's side of people, and of the group head's page."""

from django.urls import path

from reservations.views import (
    account_tree,
    courses,
    group_head,
    join,
    tree_changes,
    tree_draft,
    tree_import,
    welcome,
)

urlpatterns = [
    path("manage/accounts/", account_tree.show, name="manage-accounts"),
    path("manage/accounts/collect/", account_tree.collect, name="manage-collect"),
    path("manage/accounts/add/", account_tree.add, name="manage-add"),
    path("manage/accounts/draft/", tree_draft.show, name="manage-draft"),
    path("manage/accounts/draft/save/", tree_draft.save, name="manage-save"),
    path("manage/accounts/draft/drop/", tree_draft.drop, name="manage-drop"),
    path("manage/accounts/changes/", tree_changes.show, name="manage-changes"),
    path("manage/accounts/changes/<int:pk>/", tree_changes.one, name="manage-change"),
    path(
        "manage/accounts/changes/<int:pk>/undo/", tree_changes.undo, name="manage-undo"
    ),
    path("manage/accounts/import/", tree_import.show, name="manage-import"),
    path("manage/accounts.csv", tree_import.export, name="manage-export"),
    path("manage/courses/", courses.show, name="manage-courses"),
    path("manage/courses/new/", courses.new, name="manage-course-new"),
    path("manage/courses/<int:pk>/invite/", courses.invite, name="manage-invite"),
    path("welcome/", welcome.choose, name="choose-password"),
    path("welcome/<str:token>/", welcome.welcome, name="welcome"),
    path("group/", group_head.show, name="group"),
    path("join/<str:token>/", join.join, name="join-group"),
]
